/** The model and data of a node, as its client sees them. */

import type { Metrics } from "./frames";
import type { Model } from "./tensors";

export interface TrainConfig {
  epochs: number;
  batchSize: number;
  lr: number;
  /** Seed of all randomness of this task; below 2^56. */
  seed: bigint;
  /** Aborted when the result is no longer wanted. */
  signal: AbortSignal;
  /** Report the fraction done, from 0 to 1. */
  progress(fraction: number): void;
}

export interface Trained {
  model: Model;
  /** Number of examples that the result stands for. */
  weight: number;
  metrics: Metrics;
}

/** A model and the private data that it is trained on. Methods may throw: the coordinator is told the message. */
export interface Learner {
  /** Return fresh weights, the same for the same seed. */
  init(seed: bigint): Model | Promise<Model>;
  /** Train from these weights. */
  train(model: Model, config: TrainConfig): Trained | Promise<Trained>;
  /** Measure on private held-out data: "eval/examples", "eval/loss", …; {} without any. */
  evaluate(model: Model): Metrics | Promise<Metrics>;
}
