"""What ALBERT is: its configuration, embedding, layers, how layers share them, and the heads on top."""
