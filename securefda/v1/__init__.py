"""Protobuf code generated from `protos/securefda/v1` by `protos/generate.py`. Do not edit."""
