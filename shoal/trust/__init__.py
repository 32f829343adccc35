"""Trust among peers: signed documents and signed requests. Nothing here needs a reachable coordinator.

keys               one key per node, in a file                        the only importer of `cryptography`
documents          documents signed by coordinator or operator: roster, certificates, modes, manifests
envelope           a signed request and its signed answer
window             replay window: each request counts once, without clocks
request_verifier   admission of requests by roster, certificates and replay windows
codes              the reasons of refusals, with their remedies
"""
