/** Every page and its address. Each is loaded when it is first looked at. */
import { lazy, type ReactNode } from "react";

const jobs = async () => ({ default: (await import("./jobs/JobsPage")).JobsPage });
const JobsPage = lazy(jobs);
// What most begin with is on its way before anything is drawn.
if (["/", "/jobs"].includes(location.pathname)) void jobs();
const ComparePage = lazy(async () => ({ default: (await import("./compare/ComparePage")).ComparePage }));
const AlertsPage = lazy(async () => ({ default: (await import("./observe/AlertsPage")).AlertsPage }));
const JoinPage = lazy(async () => ({ default: (await import("./join/JoinPage")).JoinPage }));
const LogsPage = lazy(async () => ({ default: (await import("./observe/LogsPage")).LogsPage }));
const NodePage = lazy(async () => ({ default: (await import("./nodes/NodePage")).NodePage }));
const NodesPage = lazy(async () => ({ default: (await import("./nodes/NodesPage")).NodesPage }));
const JobPage = lazy(async () => ({ default: (await import("./job/JobPage")).JobPage }));

const NewJobPage = lazy(async () => ({ default: (await import("./newjob/NewJobPage")).NewJobPage }));

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
