import { useEffect, useState } from "react";
import { useConnection } from "./LiveProvider";

/** This browser's clock, once a second; it stands still at the loss of contact, since nothing later is known. */
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
