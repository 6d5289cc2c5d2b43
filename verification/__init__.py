"""Long independent checks of the library; see README.md."""
