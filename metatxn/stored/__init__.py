"""What is stored in a segment, for people who look at it: also what readers do not see."""
