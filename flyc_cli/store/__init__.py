"""What earlier builds made, found again by the content of everything that it was made from."""
