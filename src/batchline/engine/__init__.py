"""What happens to data: files in, batches, finalizing, duties."""
