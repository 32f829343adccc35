import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { fleetQuery } from "../queries/fleet";
import { useFollow } from "../live/LiveProvider";
import { LogView } from "./LogView";

/** Page of the log of all nodes and the coordinator. */
export function LogsPage() {
  useFollow(null);
  useEffect(() => void (document.title = "Logs · shoal"), []);
  const { data: nodes = [] } = useQuery(fleetQuery);
  return (
    <article>
      <h1 className="log-title">Logs</h1>
      <LogView nodes={nodes.map(({ name }) => name)} />
    </article>
  );
}
