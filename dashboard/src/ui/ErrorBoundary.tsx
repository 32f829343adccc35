import { Component, type ReactNode } from "react";
import { ErrorMessage } from "./ErrorMessage";

interface Props {
  children: ReactNode;
  /** True if it surrounds a part of a page, so that the rest stays. */
  part?: boolean;
}

interface State {
  error: Error | null;
  /** State of the attempt to reload the page. */
  again: "" | "asking" | "failed";
}

/** Error boundary that shows an error instead of an empty page. */
export class ErrorBoundary extends Component<Props, State> {
  override state: State = { error: null, again: "" };

  static getDerivedStateFromError(error: unknown): Partial<State> {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  /** Reload the page if the coordinator answers; otherwise the browser would show its own error page. */
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
        <ErrorMessage error={error} />
        <p>
          <button type="button" className="button" disabled={again === "asking"} onClick={() => void this.again()}>
            Retry
          </button>
          <span role="status" className="sub">
            {again === "failed" && " The coordinator does not answer."}
          </span>
        </p>
      </>
    );
    if (this.props.part) return <section data-testid="part-failed">{said}</section>;
    return (
      <main id="main" className="page">
        <h1>Something went wrong</h1>
        {said}
      </main>
    );
  }
}
