"""What looks on and reports: flight ring, spans, statistics, proofs."""
