"""What runs in the boxes: the script that runs tests and writes the reward, and reports of pytest and unittest."""
