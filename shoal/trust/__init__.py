"""Trust among peers: signed documents and requests, and private set intersection; all without a coordinator.

keys               one key per node, in a file; with intersection the only importer of `cryptography`
documents          documents signed by coordinator or operator: roster, certificates, modes, manifests
envelope           a signed request and its signed answer
window             replay window: each request counts once, without clocks
request_verifier   admission of requests by roster, certificates and replay windows
intersection       private set intersection: the ids that two parties have in common
codes              the reasons of refusals, with their remedies
"""
