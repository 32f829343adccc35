import { Component, type ReactNode } from "react";
import { Problem } from "./Problem";

interface Props {
  children: ReactNode;
  /** Whether it is around a part of a page, so that the rest of the page stays. */
  part?: boolean;
}

interface State {
  error: Error | null;
  /** What has become of the last attempt to load the page again. */
  again: "" | "asking" | "failed";
}

/** Catches a fault of the page itself, so that it is said rather than shown as an empty screen. */
export class ErrorBoundary extends Component<Props, State> {
  override state: State = { error: null, again: "" };

  static getDerivedStateFromError(error: unknown): Partial<State> {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  /** Loads the page again if the coordinator answers: else the browser would show a page of its own instead. */
  private readonly again = async (): Promise<void> => {
    this.setState({ again: "asking" });
    try {
      await fetch(location.href, { method: "HEAD", cache: "no-store" });
      location.reload();
    } catch {
      this.setState({ again: "failed" });
    }
  };

  override render() {
    const { error, again } = this.state;
    if (error === null) return this.props.children;
    const said = (
      <>
        <Problem error={error} />
        <p>
          <button type="button" className="button" disabled={again === "asking"} onClick={() => void this.again()}>
            Again
          </button>
          <span role="status" className="sub">
            {again === "failed" && " The coordinator still does not answer."}
          </span>
        </p>
      </>
    );
    if (this.props.part) return <section data-testid="part-failed">{said}</section>;
    return (
      <main id="main" className="page">
        <h1>This page failed</h1>
        {said}
      </main>
    );
  }
}
