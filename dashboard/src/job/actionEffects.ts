/** What an operator's command does, in the words of the dialog that asks before. */
import type { Command } from "../api/commands";
import type { Job } from "../api/types";
import { plural } from "../format/number";
import { isDynamic } from "../format/unit";

export type Action = "pause" | "resume" | "stop" | "gossip" | "server";

interface Effect {
  command: Command;
  verb: string;
  /** How this choice differs from the others of the same action. */
  when: string;
  text: string;
}

export function effects(action: Action, job: Job): [Effect, ...Effect[]] {
  switch (action) {
    case "pause":
      return [
        {
          command: "pause",
          verb: "Pause",
          when: "",
          text: "Nothing new is asked of the nodes until somebody resumes the job. Reports on their way still count.",
        },
      ];
    case "resume":
      if (isHeld(job)) {
        return [
          {
            command: "resume",
            verb: "Start",
            when: "",
            text: "Nodes are asked for an initial model, if none came with the job, and then the training begins.",
          },
        ];
      }
      return [
        {
          command: "resume",
          verb: "Resume",
          when: "",
          text: `The job goes on from version ${job.version} with the nodes that are there.`,
        },
      ];
    case "gossip":
      return [
        {
          command: "gossip",
          verb: "Switch",
          when: "",
          text: `The nodes carry the job on among themselves from version ${job.version}, or from one that is made of what they have reported by now. No version is made here until it is back.`,
        },
      ];
    case "server":
      return [
        {
          command: "server",
          verb: "Bring back",
          when: "",
          text: `The nodes are asked for what they have learned. Its mean becomes version ${job.version + 1}, and the job goes on from there.`,
        },
      ];
    case "stop":
      return [
        {
          command: "stop-round",
          verb: "Stop",
          when: isDynamic(job) ? "After a last synchronisation" : "After this round",
          text: `${finishing(job)}, then the job ends at version ${job.version + 1}. ${KEPT}`,
        },
        {
          command: "stop-now",
          verb: "Abort",
          when: "Abort now",
          text: `${training(job)} The job ends at version ${job.version}. ${KEPT}`,
        },
      ];
  }
}

/** Whether a job was paused before anything was asked of anybody. */
export const isHeld = (job: Pick<Job, "state" | "started_at" | "model">): boolean =>
  job.state === "paused" && job.started_at === null && job.model === null;

const KEPT = "Its model and its record stay; a stopped job cannot be resumed.";

const finishing = (job: Job) =>
  isDynamic(job)
    ? "All nodes are asked for what they have, and it is averaged"
    : "The open round is finished and counted";

function training(job: Job): string {
  const since = isDynamic(job) ? "since they were last synchronised" : "in the open round";
  if (job.busy > 0) return `The work of ${plural(job.busy, "node")} ${since} is thrown away.`;
  return isDynamic(job) ? "Nobody is training." : "The open round is dropped.";
}
