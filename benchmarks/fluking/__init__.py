"""The methods of ``against_fluke.py`` in fluke: its own clients, and the same with one deviation taken away."""
