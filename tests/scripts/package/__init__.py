"""A package that is started with -m."""

print("package is imported as", __name__)
