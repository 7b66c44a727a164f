"""GLUE's nine tasks (Wang et al., 2018), a file each."""
