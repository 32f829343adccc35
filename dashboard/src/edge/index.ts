/** The edge client for browsers, as the coordinator serves it at /edge.js. */

export { EdgeClient, type EdgeEvents } from "./client";
export { ConformanceLearner } from "./conformance";
export type { Metrics } from "./frames";
export { Refused } from "./http";
export type { Learner, TrainConfig, Trained } from "./learner";
export { float32, float32Of, int64, int64Of, type DType, type Model, type Tensor } from "./tensors";
