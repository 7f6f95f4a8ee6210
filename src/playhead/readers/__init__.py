"""The constructors of `Dataset` that read what lies outside of the program: files, topics, other pipelines.

Each makes the one node of a source; what a source needs is imported when it is asked for.
"""
