"""Stand-ins for parts that this machine lacks, controlled by the test that uses them."""
