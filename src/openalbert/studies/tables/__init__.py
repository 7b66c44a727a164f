"""One file for each table or figure: its variants, the paper's numbers and the paper's claims."""
