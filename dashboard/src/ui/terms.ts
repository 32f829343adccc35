/** Explanations of terms, in the words of docs/reference/glossary.md: a test compares them. */
export const TERMS = {
  "base model": "The frozen tensors of a model, which each node holds and which are not exchanged.",
  "concept drift": "The data change over time, so that a model fits them less than before.",
  "conservation residual":
    "Difference between the sum of the weighted models and all that the peers learned; about 0 if mixing loses nothing.",
  "consensus distance": "Distance of the peers' models from their mean, relative to the mean.",
  coordinator: "The server process: API, jobs, database, dashboard.",
  coverage: "The share of all local rounds that a model contains.",
  divergence: "The squared distance between a node's model and the reference.",
  "drain, block": "Give a node no new tasks; also withdraw those it holds.",
  enrolment: "A node exchanges a one-time token for a credential.",
  exchange: "Two peers average their models, as a two-phase commit.",
  gossip: "Peers train and average in pairs or neighborhoods, without a server.",
  "leader, follower": "The coordinator that holds the lease, and the others on its database.",
  "local condition": "A node's divergence is at most delta; a violation makes it report.",
  mode: "The leadership of a job: server, gossip (by its peers), or returning (from gossip to the server).",
  "model version": "A closed model of a job, numbered from 0.",
  "node state":
    "training, evaluating, online (idle in a job), stale (silent for half of lease_s), gone (silent for lease_s).",
  peer: "A node in its dealings with other nodes; also the program without a coordinator.",
  quarantine: "After repeated bad input of a peer, its models are not mixed until the process ends.",
  quorum: "The number of reports after which a round may close.",
  report: "A node's answer to a task.",
  staleness: "Versions that closed between a task and its report.",
  synchronization: "Nodes send their models or updates, and a model version is made of them.",
  traffic: "Bytes counted where they cross the socket, by job, version, node and direction.",
  weight: "The influence of an update in a mean; by default its number of examples.",
} as const;

export type TermName = keyof typeof TERMS;
