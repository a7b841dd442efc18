"""What looks on and reports: flight ring, spans, statistics, history, lint, verification."""
