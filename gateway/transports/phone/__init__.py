"""What every way of phoning in has in common: a call on a line."""
