import { useEffect, useState } from "react";
import { useConnection } from "./LiveProvider";

/** Return this browser's clock (ms), updated every second. It stops while the connection is lost, like the data. */
export function useNow(): number {
  const { lostAt, phase } = useConnection();
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (phase !== "live") return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [phase]);
  return phase === "live" ? now : Math.min(now, lostAt ?? now);
}
