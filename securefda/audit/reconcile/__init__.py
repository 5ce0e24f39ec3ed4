"""The logs of several sites read against each other: findings, claims, and files of evidence."""
