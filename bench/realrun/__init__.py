"""What bench/real.py runs."""
