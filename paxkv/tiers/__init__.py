"""Where the bytes of blocks go when they leave the device: host memory, then a disk."""
