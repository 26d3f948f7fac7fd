"""Images of boxes: root file systems that are unpacked or built once, and kept by their content."""
