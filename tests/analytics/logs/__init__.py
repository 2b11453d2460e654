"""What is done with access logs besides looking for storms."""
