"""Results of scoring as files: one row per input, in CSV, JSON lines or Parquet, written as they are made.

Reading and writing are here, without torch. What computes the rows is not, nor is anything that is printed.
"""
