"""What holds for all tests."""

import signal

# A shell that runs the tests in the background lets them ignore interrupts, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
