/** The learner of the conformance jobs (docs/reference/protocol.md, "Conformance"). */

import type { Metrics } from "./frames";
import type { Learner, TrainConfig, Trained } from "./learner";
import { float32, float32Of, int64, int64Of, type Model, type Tensor } from "./tensors";

export class ConformanceLearner implements Learner {
  init(seed: bigint): Model {
    const w = Array.from({ length: 8 }, (_, i) => Number((seed + BigInt(i)) % 64n) / 64);
    return new Map([
      ["w", float32(w, [8])],
      ["seen", int64(0n)],
    ]);
  }

  train(model: Model, { epochs, seed, progress }: TrainConfig): Trained {
    if (model.has("impossible")) throw new Error("the tensor impossible cannot be trained");
    const step = Number(seed % 1024n) / 1024;
    const made = new Map(model);
    for (let epoch = 0; epoch < epochs; epoch += 1) {
      for (const [name, tensor] of made) {
        if (tensor.dtype === "F32") made.set(name, { ...tensor, data: new Uint8Array(float32Of(tensor).map((x) => x * 0.5 + step).buffer) });
      }
      made.set("seen", int64(int64Of(made.get("seen") as Tensor) + 1n));
      progress((epoch + 1) / epochs);
    }
    return { model: made, weight: Number(seed % 7n) + 1, metrics: { "train/loss": step } };
  }

  evaluate(model: Model): Metrics {
    const loss = float32Of(model.get("w") as Tensor).reduce((total, x) => total + Math.abs(x), 0);
    return { "eval/examples": 4, "eval/loss": loss };
  }
}
