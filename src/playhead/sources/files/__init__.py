"""Files wherever they lie: found, opened, mapped, fetched in ranges, and what was found out about them kept."""
