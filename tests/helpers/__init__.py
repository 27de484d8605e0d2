"""What several tests share: `build` (standard library only) and `tiny` (a GPT-2 small enough to check)."""
