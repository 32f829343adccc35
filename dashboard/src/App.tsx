import { Suspense, useEffect, useRef } from "react";
import { useFollow } from "./live/LiveProvider";
import { PAGES, PATTERNS } from "./pages";
import { AlertBanner } from "./alerts/AlertBanner";
import { KeyboardShortcuts } from "./keyboard/KeyboardShortcuts";
import { Link, matchRoute, usePath } from "./router/router";
import { useSignInRequired } from "./api/sessionState";
import { SessionMenu } from "./session/SessionMenu";
import { SignInPage } from "./session/SignInPage";
import { ConnectionBanner } from "./ui/ConnectionBanner";
import { ErrorBoundary } from "./ui/ErrorBoundary";
import { Logo } from "./ui/Logo";
import { Nav } from "./ui/Nav";
import { ThemeToggle } from "./ui/ThemeToggle";
import { Loading } from "./ui/QueryStatus";

export function App() {
  const path = usePath();
  const closed = useSignInRequired();
  useFocusOnArrival(path);
  return (
    <>
      <a className="skip" href="#main">
        Skip to content
      </a>
      <header className="top">
        <Link href="/" className="brand" aria-label="shoal: all jobs">
          <Logo />
          <span>shoal</span>
        </Link>
        {!closed && <Nav path={path} />}
        <div className="top-end">
          {!closed && <ConnectionBanner />}
          {!closed && <KeyboardShortcuts />}
          {!closed && <SessionMenu />}
          <ThemeToggle />
        </div>
      </header>
      <ErrorBoundary key={path}>
        {!closed && <AlertBanner path={path} />}
        <main id="main" className="page" tabIndex={-1}>
          {closed ? <SignInPage /> : <Page path={path} />}
        </main>
      </ErrorBoundary>
    </>
  );
}

/** Move the focus to the new page, as a page load does. */
function useFocusOnArrival(path: string): void {
  const last = useRef(path);
  useEffect(() => {
    if (last.current === path) return;
    last.current = path;
    document.getElementById("main")?.focus({ preventScroll: true });
  }, [path]);
}

function Page({ path }: { path: string }) {
  const where = matchRoute(path, PATTERNS);
  if (where === null) return <Unknown />;
  return <Suspense fallback={<Loading />}>{PAGES[where.pattern](...where.names)}</Suspense>;
}

function Unknown() {
  useFollow(null);
  return (
    <section>
      <h1>Page not found</h1>
      <p>
        <Link href="/">All jobs</Link>
      </p>
    </section>
  );
}
