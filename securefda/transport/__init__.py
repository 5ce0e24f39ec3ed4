"""Messages on the wire: protobuf, gRPC with mutual TLS 1.3, streams of vectors that survive a broken connection.

gRPC for Python has no setting for the lowest TLS version. It takes the cipher suites of TLS 1.2 from the environment
when it is imported. Before importing it, this package therefore sets one that needs an RSA certificate: a federation's
certificates are ECDSA, so no TLS 1.2 handshake can succeed. The suites of TLS 1.3 are not affected. If a program has
imported ``grpc`` earlier, a TLS 1.2 handshake may succeed; the aggregator checks the version of every call's connection
and refuses all but TLS 1.3 before it reads a message.

gRPC's core also prints every failed handshake to standard error. These lines add nothing to our own errors and events,
so they are off unless ``GRPC_VERBOSITY`` asks for them.
"""

import os

os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
