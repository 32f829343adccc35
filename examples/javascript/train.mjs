/**
 * A node in JavaScript: logistic regression on points that this process makes. It runs in Node.js 20 or newer, Deno and
 * Bun; the class and the learner also run in a page of the coordinator's own address.
 *
 *     node train.mjs http://127.0.0.1:8080 sht_… tablet
 */

const [url, token, name = "javascript"] = process.argv.slice(2);
if (!token) throw new Error("usage: node train.mjs URL TOKEN [NAME]");
const { EdgeClient, float32, float32Of } = await import(`data:text/javascript,${encodeURIComponent(await (await fetch(`${url}/edge.js`)).text())}`);

/** Return points in the plane, of class 1 to the right of a line. */
function points(count) {
  return Array.from({ length: count }, () => {
    const [x, y] = [2 * Math.random() - 1, 2 * Math.random() - 1];
    return { x: [x, y, 1], y: x + 0.5 * y > 0.1 ? 1 : 0 };
  });
}

const [training, test] = [points(200), points(100)];
const probability = (w, x) => 1 / (1 + Math.exp(-x.reduce((sum, value, i) => sum + value * w[i], 0)));

class LogisticRegression {
  init() {
    return new Map([["w", float32([0, 0, 0], [3])]]);
  }

  train(model, { epochs, lr }) {
    const w = float32Of(model.get("w"));
    let loss = 0;
    for (let epoch = 0; epoch < epochs; epoch += 1) {
      for (const { x, y } of training) {
        const p = probability(w, x);
        loss -= Math.log(y ? p : 1 - p) / (epochs * training.length);
        x.forEach((value, i) => (w[i] -= lr * (p - y) * value));
      }
    }
    return { model: new Map([["w", float32(w, [3])]]), weight: training.length, metrics: { "train/loss": loss } };
  }

  evaluate(model) {
    const w = float32Of(model.get("w"));
    const right = test.filter(({ x, y }) => probability(w, x) > 0.5 === (y === 1)).length;
    return { "eval/examples": test.length, "eval/accuracy": right / test.length };
  }
}

const stop = new AbortController();
process.on("SIGINT", () => stop.abort());
process.on("SIGTERM", () => stop.abort());
const client = new EdgeClient(url, new LogisticRegression(), {
  onReport: (job, counted) => console.log(`${job}: a report ${counted ? "counted" : "came too late"}`),
  onFailure: (job, message) => console.error(`${job}: ${message}`),
});
await client.enrol(token, name);
await client.run(stop.signal);
