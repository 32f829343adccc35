/** The effects of an operator's commands, as the confirmation dialog describes them. */
import type { Command } from "../api/commands";
import type { Job } from "../api/types";
import { isDynamic } from "../domain/unit";
import { plural } from "../format/number";

export type Action = "pause" | "resume" | "stop" | "gossip" | "server";

interface Effect {
  command: Command;
  verb: string;
  /** Label of this option if an action has several. */
  when: string;
  text: string;
}

export function actionEffects(action: Action, job: Job): [Effect, ...Effect[]] {
  switch (action) {
    case "pause":
      return [
        {
          command: "pause",
          verb: "Pause",
          when: "",
          text: "Nodes get no new tasks until the job is resumed. Reports of current tasks are still accepted.",
        },
      ];
    case "resume":
      if (isHeld(job)) {
        return [
          {
            command: "resume",
            verb: "Start",
            when: "",
            text: "Unless the job came with a model, a node is asked for an initial model. Then training starts.",
          },
        ];
      }
      return [
        {
          command: "resume",
          verb: "Resume",
          when: "",
          text: `The job continues from version ${job.version} with the nodes that are online.`,
        },
      ];
    case "gossip":
      return [
        {
          command: "gossip",
          verb: "Switch",
          when: "",
          text: `The nodes continue the job with each other from version ${job.version}, or from one made of the reports so far. The coordinator makes no versions until the job returns.`,
        },
      ];
    case "server":
      return [
        {
          command: "server",
          verb: "Switch",
          when: "",
          text: `The nodes return their models. Their mean becomes version ${job.version + 1}, from which the job continues.`,
        },
      ];
    case "stop":
      return [
        {
          command: "stop-round",
          verb: "Stop",
          when: isDynamic(job) ? "After a final synchronization" : "After this round",
          text: `${finishText(job)}, then the job ends at version ${job.version + 1}. ${KEPT_TEXT}`,
        },
        {
          command: "stop-now",
          verb: "Abort",
          when: "Abort now",
          text: `${abortText(job)} The job ends at version ${job.version}. ${KEPT_TEXT}`,
        },
      ];
  }
}

/** Return whether the job was created to be started later. */
export const isHeld = (job: Pick<Job, "state" | "started_at" | "model">): boolean =>
  job.state === "paused" && job.started_at === null && job.model === null;

const KEPT_TEXT = "Its model and history are kept; a stopped job cannot be resumed.";

const finishText = (job: Job) =>
  isDynamic(job) ? "All nodes send their models, which are averaged" : "The open round is completed";

function abortText(job: Job): string {
  const since = isDynamic(job) ? "since the last synchronization" : "in the open round";
  if (job.busy > 0) return `The work of ${plural(job.busy, "node")} ${since} is discarded.`;
  return isDynamic(job) ? "No node is training." : "The open round is discarded.";
}
