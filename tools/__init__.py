"""What building, testing and measuring Kerf needs, and running it does not."""
