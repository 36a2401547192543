"""What a person looks through."""
