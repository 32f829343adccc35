"""Trust among peers: who signed what, and who may say it. Nothing here needs a coordinator that answers.

keys         a key per node, in a file of its own            the only importer of `cryptography`
papers       what the coordinator or the operator has signed: the roster, certificates, modes, manifests, leases
envelope     a signed request and its signed answer
window       each request once, without clocks
gatekeeper   who comes in: roster, certificates and windows held together
codes        every reason for a refusal, and what to do about it
"""
