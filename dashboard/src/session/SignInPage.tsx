import { useQueryClient } from "@tanstack/react-query";
import { keys } from "../api/queries";
import type { Role } from "../api/types";
import { useUnfollow } from "../live/LiveProvider";
import { SignInForm } from "./SignInForm";

/** Stands in for every page while the coordinator shows nothing without a session. */
export function SignInPage() {
  useUnfollow();
  const had = useQueryClient().getQueryData<Role>(keys.session) ?? null;
  return (
    <section className="sign-in-page">
      <h1>Sign in</h1>
      <p>
        {had === null
          ? "This coordinator shows its jobs to signed-in people only."
          : "Your session has ended. Sign in again to go on where you were."}
      </p>
      <SignInForm />
    </section>
  );
}
