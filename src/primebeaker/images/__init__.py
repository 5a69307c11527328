"""The catalogue of training images, and the Dockerfiles they are built from."""
