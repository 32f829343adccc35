import { useUnfollow } from "../live/LiveProvider";
import { SignInForm } from "./SignInForm";

/** Stands in for every page while the coordinator shows nothing without a session. */
export function SignInPage() {
  useUnfollow();
  return (
    <section className="sign-in-page">
      <h1>Sign in</h1>
      <p>This coordinator shows its jobs to signed-in people only.</p>
      <SignInForm />
    </section>
  );
}
