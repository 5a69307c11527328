"""Build the container images of the installed LiteRegistry companions and import them into a Beaker workspace."""
