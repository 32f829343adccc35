/** Every page and its address. Each is loaded when it is first looked at. */
import type { ReactNode } from "react";
import { lazily } from "./ui/lazily";

// What most begin with is on its way before anything is drawn.
const isFirst = ["/", "/jobs"].includes(location.pathname);
const JobsPage = lazily(async () => (await import("./jobs/JobsPage")).JobsPage, isFirst);
const ComparePage = lazily(async () => (await import("./compare/ComparePage")).ComparePage);
const AlertsPage = lazily(async () => (await import("./observe/AlertsPage")).AlertsPage);
const JoinPage = lazily(async () => (await import("./join/JoinPage")).JoinPage);
const LogsPage = lazily(async () => (await import("./observe/LogsPage")).LogsPage);
const NodePage = lazily(async () => (await import("./nodes/NodePage")).NodePage);
const NodesPage = lazily(async () => (await import("./nodes/NodesPage")).NodesPage);
const JobPage = lazily(async () => (await import("./job/JobPage")).JobPage);

const NewJobPage = lazily(async () => (await import("./newjob/NewJobPage")).NewJobPage);

export const PAGES = {
  "/": () => <JobsPage />,
  "/jobs": () => <JobsPage />,
  "/jobs/:name": (name = "") => <JobPage key={name} name={name} />,
  "/alerts": () => <AlertsPage />,
  "/join": () => <JoinPage />,
  "/logs": () => <LogsPage />,
  "/new": () => <NewJobPage />,
  "/nodes": () => <NodesPage />,
  "/nodes/:name": (name = "") => <NodePage key={name} name={name} />,
  "/compare": () => <ComparePage />,
} as const satisfies Record<string, (...names: string[]) => ReactNode>;

export const PATTERNS = Object.keys(PAGES) as (keyof typeof PAGES)[];
