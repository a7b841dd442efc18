"""What every collective stands on: calls, rounds, the guard; how bytes move and combine."""
