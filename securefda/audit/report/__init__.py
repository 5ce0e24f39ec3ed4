"""The audit page: one HTML file on what every log below a folder says."""
